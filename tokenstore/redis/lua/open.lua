-- open: the oldest members of a shard's open set. Loaded without the prelude.
--
-- KEYS 1 the shard's open set
-- ARGV 1 least age, ms
--      2 how many to skip
--      3 how many to return
--      4 least score, or -inf
-- Returns {member, score, member, score, …}, by ascending score.
local t = redis.call('TIME')
local most = t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[1]
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[4], most, 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
