//! The ledger: SQLite; the one module with SQL.
