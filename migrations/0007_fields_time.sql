-- `time` of our managedFields entry after the apply; empty: it had none, or the row is older than this column. An entry with the same
-- fields and another time was written again since (ADR 39).
ALTER TABLE applied_objects ADD COLUMN fields_time TEXT NOT NULL DEFAULT '';
