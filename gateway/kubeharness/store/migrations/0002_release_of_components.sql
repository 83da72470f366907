-- min_build: 1
-- Each process says of which release it is; one from before leaves it empty.
ALTER TABLE component ADD COLUMN release TEXT NOT NULL DEFAULT '';
