-- Who the server is: the authority with its key, the secret of tokens, the seed of names; its address.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- Numbers are never given twice (AUTOINCREMENT): they are part of what names and UIDs are made of.
CREATE TABLE clusters (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL UNIQUE,
    revision  INTEGER NOT NULL,
    random    INTEGER NOT NULL,
    addresses INTEGER NOT NULL,
    ports     INTEGER NOT NULL
) STRICT;

-- The newest version of each object.
CREATE TABLE objects (
    cluster  INTEGER NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
    resource TEXT NOT NULL,
    key      TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (cluster, resource, key)
) STRICT;
