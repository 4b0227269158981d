-- A journal for each partition. Its history has the same addresses and bytes as in segment files (history/format.py):
-- an extent is a segment, a commit stands at an offset of it, and snapshots refer to both.

CREATE TABLE laneway.journals (
    number integer PRIMARY KEY,      -- of the partition
    store bigint NOT NULL,           -- tells this journal from others; the bits of an unsigned number
    epoch bigint NOT NULL,           -- of the leadership that claimed it last, or that wrote its last commit
    claim bigint NOT NULL,           -- grows each time somebody begins to write: an older one can write nothing
    position bigint NOT NULL,        -- of the last commit
    holder uuid,                     -- who claimed it, for itself to know it again on another connection
    holder_pid integer,              -- the server process of its connection …
    holder_since timestamptz,        -- … and when that began: as long as there is such a one, it is in use
    holder_name text
) WITH (fillfactor = 50);            -- each commit updates its journal's row: leave room to do that in the same page

CREATE TABLE laneway.extents (
    journal integer NOT NULL REFERENCES laneway.journals,
    number integer NOT NULL,
    first_position bigint NOT NULL,
    epoch bigint NOT NULL,
    version smallint NOT NULL,       -- of the format of its commits
    PRIMARY KEY (journal, number)
);

-- Partitioned by journal, and those by extent: history is dropped a table at a time, and leaves nothing to vacuum.
-- The tables of extents, commits_JOURNAL_EXTENT, have a primary key of their own: the offset.
CREATE TABLE laneway.commits (
    journal integer NOT NULL,
    extent integer NOT NULL,
    "offset" bigint NOT NULL,
    length integer NOT NULL,
    data bytea NOT NULL
) PARTITION BY LIST (journal);

-- Never compressed, which would be tried again and again in vain, and read in part without reading all of it.
ALTER TABLE laneway.commits ALTER COLUMN data SET STORAGE EXTERNAL;

-- The bytes of each stand in a table of its own, snapshot_JOURNAL_POSITION_CLAIM, in pieces.
CREATE TABLE laneway.snapshots (
    journal integer NOT NULL REFERENCES laneway.journals,
    position bigint NOT NULL,
    claim bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (journal, position)
);
