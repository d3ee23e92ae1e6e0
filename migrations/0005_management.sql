-- The column has the name of its content: the management state of the object when it was last observed.
ALTER TABLE applied_objects RENAME COLUMN terms TO management;
