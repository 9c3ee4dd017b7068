"""Results of a study: records, the run folder, tables and figures."""
