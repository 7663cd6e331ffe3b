"""What a rank that stays does while another one is replaced."""
