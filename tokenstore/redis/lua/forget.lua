-- forget: replaces the response of a record by what is left of it, by the word of a person.
--
-- KEYS and the record are in prelude.lua.
-- KEYS  7 the shard's decisions
-- ARGV  1 member of the open set      5 attempt that the caller has seen, 28 bytes
--       2 ID, 16 bytes                6 domain of its fence
--       3 author of the decision      7 state that the caller has seen
--       4 reason of the decision      8 what is left of the response, packed
--                                     9 number of decisions to keep
-- Returns {verdict, record, response, now}. The verdict is
--   settled     the response is replaced
--   kept        the record is another one
--   unreadable  a newer build wrote the record, or it is corrupt
local member, id, by, reason, mine, dom, seen, rest, keep = unpack(ARGV)

local r, refusal = load()
if refusal then return refusal end
if not r or attempt(r) ~= mine or domain(r) ~= dom or state(r) ~= seen then return {'kept', '', '', p48(now)} end
local read = bare(r)
save(sub(r, 1, 3) .. INLINE .. sub(read, 5) .. rest)
redis.call('DEL', KEYS[4])
redis.call('LPUSH', KEYS[7], '\1\6' .. p48(now) .. sub(r, 5, 8) .. id .. member .. char(#by) .. by .. reason)
redis.call('LTRIM', KEYS[7], 0, keep - 1)
return {'settled', read, '', p48(now)}
