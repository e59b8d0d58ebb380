-- mark: notes in a shard's incarnation that its clock jumped ahead, if it is still the expected
-- one. The shard then counts as one that lost its records, also when the clock is right again.
--
-- KEYS 1 the shard's incarnation
-- ARGV 1 the expected incarnation
--      2 the incarnation with the mark
-- Returns 1 if the incarnation has the mark now, else 0.
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return (found == ARGV[1] or found == ARGV[2]) and 1 or 0
