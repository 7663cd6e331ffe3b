"""What torchrelay leans on of TorchScript's private parts."""
