-- swap: replaces or removes an incarnation, if it is still the expected one. What the clock did
-- before does not matter to its successor.
--
-- KEYS 1 the shard's incarnation
--      2 the evidence of its clock
--      3 the canary
-- ARGV 1 the incarnation to replace
--      2 the new incarnation, or '' to remove it
-- Returns 1 if the expected incarnation was there, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2])
end
return 1
