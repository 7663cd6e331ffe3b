"""Messages to a webhook about what a person wants to hear of a job: which, their words, how they go out."""
