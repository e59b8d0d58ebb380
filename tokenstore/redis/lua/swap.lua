-- swap: replaces an incarnation, or removes it. Loaded without the prelude.
--
-- KEYS 1 the shard's incarnation
-- ARGV 1 the one to replace
--      2 the one to put there; '' to remove it
-- Returns 1 where it was there.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
