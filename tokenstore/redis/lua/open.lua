-- open: the members of a shard's open set that come after a place in it, by
-- ascending score and member. A place stays where it is when members before it
-- go, which a number of members to skip does not. Loaded without the prelude.
--
-- KEYS 1 the shard's open set
-- ARGV 1 least age, ms
--      2 the place's score, or -inf
--      3 the place's member; '' is before all others of that score
--      4 how many to return
-- Returns {member, score, member, score, …}.
local byte, count = string.byte, tonumber(ARGV[4])

-- As Redis orders members: by bytes. Lua would collate by locale.
local function after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

local t = redis.call('TIME')
local most = t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[1]
local skip = 0
while true do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[2], most, 'WITHSCORES', 'LIMIT', skip, count)
  local from = 1
  while from < #page and tonumber(page[from + 1]) == tonumber(ARGV[2]) and not after(page[from], ARGV[3]) do
    from = from + 2
  end
  if from == 1 then return page end
  if from < #page then
    skip = skip + (from - 1) / 2
    return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[2], most, 'WITHSCORES', 'LIMIT', skip, count)
  end
  skip = skip + #page / 2
end
