-- forget: removes the response of a record by the word of a person, and leaves the record. A
-- completed record expires now, and an unknown one loses the answer that was kept.
--
-- KEYS and the record are in prelude.lua.
-- KEYS  7 the shard's decisions
-- ARGV  1 member of the open set   4 reason of the decision
--       2 ID, 16 bytes             5 number of decisions to keep
--       3 author of the decision
-- Returns {verdict, record, response, now}. The verdict is
--   settled     the response is removed
--   kept        there was none
--   unreadable  a newer build wrote the record, or it is corrupt
local member, id, by, reason, keep = unpack(ARGV)

local r, refusal = load()
if refusal then return refusal end
if not r or place(r) == NOWHERE then return {'kept', r or '', '', p48(now)} end
local becomes, result_expires = state(r), sub(r, 100, 105)
if becomes == COMPLETED then
  -- The response of such a record is over. Keep its place, so that its answer stays the same.
  if u48(r, 100) <= now then return {'kept', bare(r), '', p48(now)} end
  becomes, result_expires = '\6', p48(now)
elseif becomes ~= UNKNOWN then
  return {'kept', r, '', p48(now)}
end
r = bare(r)
r = sub(r, 1, 99) .. result_expires .. sub(r, 106)
save(r)
redis.call('DEL', KEYS[4])
redis.call('LPUSH', KEYS[7], '\1' .. becomes .. p48(now) .. sub(r, 5, 8) .. id .. member .. char(#by) .. by .. reason)
redis.call('LTRIM', KEYS[7], 0, keep - 1)
return {'settled', r, '', p48(now)}
