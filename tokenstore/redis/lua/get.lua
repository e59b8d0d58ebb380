-- get: reads a record and the server's time. Only clusters need this script, because a
-- pipeline cannot ask the record's node for its time.
--
-- KEYS and the record are in prelude.lua.
-- Returns {verdict, record, response, now, incarnation}. The verdict is
--   got         the record is returned, or '' if there is none
--   unreadable  a newer build wrote the record, or it is corrupt
local r, incarnation, refusal = load()
if refusal then return refusal end
if not r then return {'got', '', '', now, incarnation or ''} end
return {'got', r, body(r), now, incarnation or ''}
