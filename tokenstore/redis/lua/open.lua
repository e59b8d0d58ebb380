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

-- The rank of the first member after the place. Thousands may share a score, so
-- the member is searched for among them by halves.
local from = 0
if ARGV[2] ~= '-inf' then
  from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
  local past = from + redis.call('ZCOUNT', KEYS[1], ARGV[2], ARGV[2])
  while from < past do
    local mid = math.floor((from + past) / 2)
    if after(redis.call('ZRANGE', KEYS[1], mid, mid)[1], ARGV[3]) then past = mid else from = mid + 1 end
  end
end

local t = redis.call('TIME')
local most = t[1] * 1000 + math.floor(t[2] / 1000) - ARGV[1]
local page = redis.call('ZRANGE', KEYS[1], from, from + count - 1, 'WITHSCORES')
while #page > 0 and tonumber(page[#page]) > most do
  page[#page], page[#page - 1] = nil, nil
end
return page
