-- issue: makes a record in state issued, where there is none.
--
-- ARGV 1 incarnation expected
--      2 time to live, ms
-- Returns {verdict, record, response, now, incarnation where lost}; the verdict is
--   issued  the record is as returned: made now, or found
--   lost    the shard lost its records
--   unreadable  a newer build wrote the record, or it is corrupt
local r, incarnation, refusal = load()
if refusal then return refusal end
if incarnation ~= ARGV[1] then return {'lost', '', '', now, incarnation or ''} end
if r then return {'issued', r, body(r), now} end
r = VERSION .. ISSUED .. TOKEN .. NOWHERE .. string.rep('\0', 28) .. NO_ID .. string.rep('\0', 33)
  .. p48(now) .. NEVER .. NEVER .. NEVER .. NEVER .. p48(now + ARGV[2]) .. '\0\0\0\0\0' .. NO_REPAIR
save(r)
return {'issued', r, '', now}
