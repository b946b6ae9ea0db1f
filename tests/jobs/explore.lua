-- Makes several calls of lease.lua, each in the same state, and tells what it replied and which state it left.
-- test_lease_model.py puts lease.lua's text into `lease`: the calls of one state are then one round trip.
--
-- A state is one row for each thing stored, sorted: kind, key, name, value. It is what the script's decisions rest on:
-- times are left out, a lease is live or over, and queues are sets, in which the same job may be several times.

local function lease(ARGV) --[[lease.lua]] end

local TOLD = {'^h3:events:', '^h3:losses:', '^rq:results:', '^rq:queues$', '^h3:beacon$', '^h3:submitted'} -- nothing is decided by these
local TIMES = {started_at = true, ended_at = true, enqueued_at = true, last_heartbeat = true, created_at = true,
  h3_queued_ms = true, h3_claimed_ms = true, h3_busy_ms = true, h3_ended_ms = true}
local LATER, EARLIER = 4102444800000, 1

local write = {
  hash = function(key, name, value) redis.call('HSET', key, name, value) end,
  list = function(key, name) redis.call('RPUSH', key, name) end,
  zset = function(key, name, value) redis.call('ZADD', key, value == 'over' and EARLIER or LATER, name) end,
  ttl = function(key) redis.call('EXPIRE', key, 1000000) end,
}

local function restore(state)
  for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('DEL', key) end
  redis.call('HSET', 'h3:beacon', 'ms', LATER, 'run_id', 'same', 'quiet_until_ms', 0) -- it was seen a moment ago
  for kind, key, name, value in string.gmatch(state, '(%w+) (%S+) (%S*) ?(%S*)\n') do write[kind](key, name, value) end
end

local rows

local function add(...) rows[#rows + 1] = table.concat({...}, ' ') end

local read = {
  hash = function(key)
    local found = redis.call('HGETALL', key)
    for i = 1, #found, 2 do
      if not TIMES[found[i]] then add('hash', key, found[i], found[i + 1]) end
    end
  end,
  list = function(key)
    for _, name in ipairs(redis.call('LRANGE', key, 0, -1)) do add('list', key, name) end
  end,
  zset = function(key)
    local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #found, 2 do
      add('zset', key, found[i], key ~= 'h3:leases' and '' or tonumber(found[i + 1]) > EARLIER and 'live' or 'over')
    end
  end,
}

local function is_told(key)
  for _, pattern in ipairs(TOLD) do
    if string.find(key, pattern) then return true end
  end
end

local function snapshot()
  rows = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do
    if not is_told(key) then
      read[redis.call('TYPE', key).ok](key)
      if redis.call('TTL', key) > 0 then add('ttl', key, '') end
    end
  end
  table.sort(rows)
  return table.concat(rows, '\n') .. '\n'
end

local environment = {
  expire = function(id) redis.call('ZADD', 'h3:leases', EARLIER, id) end,
  push = function(queue, id) redis.call('RPUSH', 'rq:queue:' .. queue, id) end,
}

local replies = {}
for i, call in ipairs(cjson.decode(ARGV[2])) do
  if i == 1 or replies[i - 1][2] ~= ARGV[1] then restore(ARGV[1]) end
  local happen = environment[call[1]]
  local reply = happen and happen(call[2], call[3]) or not happen and lease(call)
  replies[i] = {reply or cjson.null, snapshot()}
end
return cjson.encode(replies)
