def once(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
