-- fence: keeps the highest fencing token of a lock domain. It may run twice, late, and in
-- any order. Loaded without the prelude.
--
-- KEYS 1 the hash of the highest fences
-- ARGV 1 the lock domain
--      2 the token, in decimal without leading zeros
-- Returns 1 if it kept the token, and 0 if that was not the highest.

-- Lua's numbers have 53 bits, and a token has 64. So digits are compared.
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
for i = 1, #ARGV[2] do
  if #known ~= #ARGV[2] then break end
  local old, new = known:byte(i), ARGV[2]:byte(i)
  if old > new then return 0 end
  if old < new then known = '' end
end
if #known >= #ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
