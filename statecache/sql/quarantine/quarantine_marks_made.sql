-- Gives the keys of the marks that `quarantine_mark` has made in this transaction.
SELECT jsonb_array_elements_text(current_setting('statecache.marks_made')::jsonb)
