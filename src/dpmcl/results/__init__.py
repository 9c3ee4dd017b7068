"""What a study leaves behind: records, the run folder, tables and figures."""
