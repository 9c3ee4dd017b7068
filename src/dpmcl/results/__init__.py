"""Results of a study: records, run folders, tables, figures and reports."""
