-- The identity of the server: the authority with its key, the key of tokens, the seed of names; and its address.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- AUTOINCREMENT never reuses a number: names and UIDs derive from it.
CREATE TABLE clusters (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL UNIQUE,
    revision  INTEGER NOT NULL,
    random    INTEGER NOT NULL,
    addresses INTEGER NOT NULL,
    ports     INTEGER NOT NULL
) STRICT;

-- The current version of each object.
CREATE TABLE objects (
    cluster  INTEGER NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
    resource TEXT NOT NULL,
    key      TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (cluster, resource, key)
) STRICT;
