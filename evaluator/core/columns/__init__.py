"""Column storage: row tables, ragged columns, interned strings."""
