-- get: the record with the server's time, for clusters, where the time cannot
-- be asked of the record's node in the same round trip otherwise.
--
-- Returns {verdict, record, response, now, incarnation}; the verdict is
--   got         the record is as returned
--   unreadable  a newer build wrote the record, or it is corrupt
local r, incarnation, refusal = load()
if refusal then return refusal end
if not r then return {'got', '', '', now, incarnation or ''} end
return {'got', r, body(r), now, incarnation or ''}
