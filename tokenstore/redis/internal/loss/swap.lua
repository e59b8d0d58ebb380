-- swap: replaces or removes an incarnation, if it is still the expected one.
--
-- KEYS 1 the shard's incarnation
-- ARGV 1 the incarnation to replace
--      2 the new incarnation, or '' to remove it
-- Returns 1 if the expected incarnation was there, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
