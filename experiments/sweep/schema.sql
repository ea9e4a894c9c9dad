-- Tables of a catalogue. `cells`, `results` and `samples` hold what must be equal however often a sweep was stopped;
-- `computations` holds what may differ. A change here raises `SCHEMA` in `catalogue.py`.

CREATE TABLE grids (            -- each by its name, as it was swept last
    name     TEXT PRIMARY KEY,
    content  TEXT NOT NULL,     -- the grid as JSON
    code     TEXT NOT NULL,     -- digest of the code of its cells
    command  TEXT NOT NULL,
    machine  TEXT NOT NULL,
    began_at TEXT NOT NULL      -- UTC, ISO 8601
) STRICT;
CREATE TABLE cells (            -- what is computed
    id       TEXT PRIMARY KEY,  -- digest of everything that determines the result
    scenario TEXT NOT NULL,
    label    TEXT NOT NULL,
    policy   TEXT NOT NULL,     -- name and options as JSON
    knobs    TEXT NOT NULL,     -- dotted key -> value, as JSON
    seed     INTEGER NOT NULL,
    code     TEXT NOT NULL,
    content  TEXT NOT NULL REFERENCES contents (id)
) STRICT;
CREATE TABLE contents (         -- scenarios with one entry and no seed
    id       TEXT PRIMARY KEY,  -- digest of it
    scenario TEXT NOT NULL      -- as JSON
) STRICT;
CREATE TABLE planned (          -- the cells of each grid; others are kept and not shown
    grid     TEXT NOT NULL REFERENCES grids (name) ON DELETE CASCADE,
    place    INTEGER NOT NULL,
    cell     TEXT NOT NULL REFERENCES cells (id),
    PRIMARY KEY (grid, place)
) STRICT;
CREATE TABLE results (          -- seconds, requests per second, fractions
    cell       TEXT PRIMARY KEY REFERENCES cells (id),
    state      TEXT NOT NULL CHECK (state IN ('done', 'failed')),
    message    TEXT,            -- why it failed
    requests   INTEGER,
    ok         INTEGER,
    failures   TEXT,            -- kind -> count, as JSON
    invalid    TEXT,            -- reasons why the run is invalid, as JSON
    mean       REAL,            -- of all requests; a failure counts as slow as the deadline
    p50        REAL,
    p75        REAL,
    p90        REAL,
    p95        REAL,
    p99        REAL,
    p999       REAL,
    max        REAL,
    ok_mean    REAL,            -- of successes alone
    ok_p50     REAL,
    ok_p75     REAL,
    ok_p90     REAL,
    ok_p95     REAL,
    ok_p99     REAL,
    ok_p999    REAL,
    ok_max     REAL,
    throughput REAL,            -- successes per second
    goodput    REAL,            -- fraction of all requests that succeeded within the scenario's slo
    shares     TEXT             -- worker -> fraction of the answered requests, as JSON
) STRICT;
CREATE TABLE samples (          -- with --keep-samples: the run as a results directory holds it
    cell TEXT PRIMARY KEY REFERENCES cells (id),
    run  BLOB NOT NULL
) STRICT;
CREATE TABLE computations (     -- where and when each result was computed
    cell        TEXT PRIMARY KEY REFERENCES cells (id),
    seconds     REAL NOT NULL,
    host        TEXT NOT NULL,
    finished_at TEXT NOT NULL,  -- UTC, ISO 8601
    tries       INTEGER NOT NULL
) STRICT;
