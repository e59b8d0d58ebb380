-- begin_unlock: the end of begin_locked.lua, after the function begin.
end

local answer = begin()
if answer[1] ~= 'begun' then
  redis.call('DEL', lock)
  return answer
end
answer[5], answer[6] = token, domain
return answer
