"""`torchrelay run`: starts controller and agents, follows the job, ends everything that it started."""
