-- How an object stood when it was last seen: JSON; empty where there is nothing to say, which is nearly always.
ALTER TABLE applied_objects ADD COLUMN terms TEXT NOT NULL DEFAULT '' CHECK (terms = '' OR json_valid(terms));
