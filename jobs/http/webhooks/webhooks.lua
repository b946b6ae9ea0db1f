-- Which notices of ended jobs are due, and who delivers them: any number of services share these, each call is atomic.
--
-- A notice is in exactly one place:
--   noted   an entry of the stream h3:webhooks, as lease.lua adds it
--   due     in the hash h3:webhooks:deliveries and, by the time of its next try, in a sorted set of its host
-- Who claims one moves its next try a lease ahead, so that it is due again if nobody tells what became of it. Hosts have
-- a sorted set of their own, by when they are next served: the one that has waited longest comes first, so a host with a
-- long backlog does not hold up another.
--
-- A script is not rolled back: the place where a notice is comes first, its host's turn last, and a wrong turn is put
-- right when the host is next looked at.
--
-- ARGV[1] names the function, the rest are its arguments. Keys are made here, as in lease.lua.

local NOTED, DELIVERIES, HOSTS = 'h3:webhooks', 'h3:webhooks:deliveries', 'h3:webhooks:hosts'
local OLDEST_MS = 24 * 3600 * 1000
local MOST, MOST_OF_A_HOST = 100000, 20000 -- beyond the first, notices stay in the stream, which keeps the latest
local MOST_MOVED = 100 -- by one call, which blocks the server

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number) return string.format('%.0f', number) end
local function due_key(host) return 'h3:webhooks:due:' .. host end
local function is_old(entry, now) return tonumber(string.match(entry, '^%d+') or 0) < now - OLDEST_MS end

-- To share turns by, and for nothing else: what is called is checked by who calls it.
local function host_of(url)
  local authority = string.match(url, '^%a+://([^/?#\\]*)') or ''
  return string.lower((string.gsub(string.gsub(authority, '^.*@', ''), ':%d*$', '')))
end

local function rest(arguments, first)
  local found = {}
  for i = first, #arguments do found[#found + 1] = arguments[i] end
  return found
end

-- A delivery, or nil: also of what somebody else has written there.
local function read(entry)
  local is_read, delivery = pcall(cjson.decode, redis.call('HGET', DELIVERIES, entry) or '')
  if not is_read or type(delivery) ~= 'table' then return nil end
  for _, field in ipairs({'job', 'url', 'host', 'outcome'}) do
    if type(delivery[field]) ~= 'string' then return nil end
  end
  delivery.tries = tonumber(delivery.tries) or 0
  return delivery
end

local function write(entry, delivery) redis.call('HSET', DELIVERIES, entry, cjson.encode(delivery)) end

-- When a host is served next: when its first delivery is due, but behind those that have waited.
local function give_turn(host, now)
  local first = redis.call('ZRANGE', due_key(host), 0, 0, 'WITHSCORES')
  if not first[2] then return redis.call('ZREM', HOSTS, host) end
  return redis.call('ZADD', HOSTS, whole(math.max(now, tonumber(first[2]))), host)
end

local function forget(entry, host)
  redis.call('HDEL', DELIVERIES, entry)
  redis.call('ZREM', due_key(host), entry)
end

-- Of a host with too many, the one goes whose next try is the furthest away: it has been tried most.
local function make_room(host, dropped)
  if redis.call('ZCARD', due_key(host)) < MOST_OF_A_HOST then return end
  local entry = redis.call('ZRANGE', due_key(host), -1, -1)[1]
  local delivery = read(entry)
  forget(entry, host)
  dropped[#dropped + 1] = delivery and delivery.job or ''
end

local function add(entry, job, url, outcome, now, dropped)
  local host = host_of(url)
  make_room(host, dropped)
  write(entry, {job = job, url = url, host = host, outcome = outcome, tries = 0})
  redis.call('ZADD', due_key(host), whole(now), entry)
  redis.call('ZADD', HOSTS, 'LT', whole(now), host)
end

local function fields_of(values)
  local found = {}
  for i = 1, #values, 2 do found[values[i]] = values[i + 1] end
  return found
end

-- Make noted ones due. How many entries were looked at.
local function move(now, dropped)
  local room = math.min(MOST_MOVED, MOST - redis.call('HLEN', DELIVERIES))
  if room <= 0 then return 0 end
  local entries = redis.call('XRANGE', NOTED, '-', '+', 'COUNT', room)
  for _, found in ipairs(entries) do
    local entry, fields = found[1], fields_of(found[2])
    if is_old(entry, now) then
      dropped[#dropped + 1] = fields.job or ''
    elseif fields.job and fields.url then
      add(entry, fields.job, fields.url, fields.outcome or '', now, dropped)
    end
    redis.call('XDEL', NOTED, entry)
  end
  return #entries
end

-- Claim what is due of a host, `most` at most.
local function take(host, most, now, lease_ms, claimed, dropped)
  local until_ms = whole(now + lease_ms)
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', due_key(host), '-inf', whole(now), 'LIMIT', 0, most)) do
    local delivery = read(entry)
    if not delivery or is_old(entry, now) then
      forget(entry, host)
      dropped[#dropped + 1] = delivery and delivery.job or ''
    else
      redis.call('ZADD', due_key(host), until_ms, entry)
      claimed[#claimed + 1] = {entry, delivery.job, delivery.url, host, delivery.outcome, whole(delivery.tries), until_ms}
    end
  end
  give_turn(host, now)
end

-- How long until another host is to be served, or -1.
local function wait_ms(now)
  local next_one = redis.call('ZRANGEBYSCORE', HOSTS, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return next_one[2] and math.max(0, tonumber(next_one[2]) - now) or -1
end

local commands = {}

-- Deliveries for the caller: `most` at most, and no more than `most_of_a_host` together with those that it is at, which
-- are given as host and number in turn. {claimed, ms until more may be due or -1, whether more is noted, what was
-- dropped}
function commands.claim(lease_ms, most, most_of_a_host, ...)
  local now, claimed, dropped = now_ms(), {}, {}
  local has_more = move(now, dropped) == MOST_MOVED
  local busy = fields_of({...})
  local hosts = redis.call('ZRANGEBYSCORE', HOSTS, '-inf', whole(now), 'LIMIT', 0, most + select('#', ...))
  for _, host in ipairs(hosts) do
    local room = math.min(most - #claimed, most_of_a_host - (busy[host] or 0))
    if room > 0 then take(host, room, now, lease_ms, claimed, dropped) end
  end
  return {claimed, wait_ms(now), has_more and 1 or 0, dropped}
end

-- It is delivered, or given up.
function commands.done(entry)
  local delivery = read(entry)
  if not delivery then return 0 end
  forget(entry, delivery.host)
  give_turn(delivery.host, now_ms())
  return 1
end

-- Try again later, if nobody else has claimed it meanwhile. `failed`: 1 if it counts as a try.
function commands.again(entry, until_ms, after_ms, failed)
  local delivery = read(entry)
  if not delivery or tonumber(redis.call('ZSCORE', due_key(delivery.host), entry)) ~= tonumber(until_ms) then
    return 0
  end
  local now = now_ms()
  delivery.tries = delivery.tries + failed
  write(entry, delivery)
  redis.call('ZADD', due_key(delivery.host), whole(now + after_ms), entry)
  give_turn(delivery.host, now)
  return 1
end

return commands[ARGV[1]](unpack(rest(ARGV, 2)))
