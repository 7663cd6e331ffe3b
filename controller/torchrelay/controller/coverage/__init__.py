"""How far the job is protected: the report and its level, promises that were not kept, and numbers that are suspect."""
