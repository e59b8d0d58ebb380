-- issue: makes a record in state issued, unless there is a record.
--
-- KEYS and the record are in prelude.lua.
-- ARGV 1 expected incarnation
--      2 time to live, ms
-- Returns {verdict, record, response, now}. The verdict is
--   issued      the record is returned, new or existing
--   lost        the shard lost its records
--   unreadable  a newer build wrote the record, or it is corrupt
local r, refusal, incarnation = load()
if refusal then return refusal end
if incarnation ~= ARGV[1] then return {'lost'} end
if r then return {'issued', r, '', p48(now)} end
r = VERSION .. ISSUED .. TOKEN .. NOWHERE .. NO_ATTEMPT .. NO_ID .. NO_FINGERPRINT
  .. p48(now) .. NEVER .. NEVER .. NEVER .. NEVER .. p48(now + ARGV[2]) .. NO_TEXTS .. NO_REPAIR
save(r)
return {'issued', r, '', p48(now)}
