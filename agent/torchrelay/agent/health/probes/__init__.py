"""Sources of evidence that may hang run in processes of their own: both sides of these, and what they share."""
