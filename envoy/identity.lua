-- Who calls: an API key of the file of keys, or the token that jwt_authn has already checked. Says so to what is behind the edge by
-- x-tensorgate-* headers, which nobody outside can send. What a caller may do is the core's to decide.
local KEYS_FILE = {{ identity.keys_file | json }}
local HIDES_CREDENTIALS = {{ "true" if identity.hides_credentials else "false" }}
local band, bnot, bor, bxor, ror, rshift = bit.band, bit.bnot, bit.bor, bit.bxor, bit.ror, bit.rshift

-- SHA-256 (FIPS 180-4), which Envoy's Lua does not offer. Its constants are the first bits of the fractions of roots of primes; they are
-- taken from doubles of 53 bits, which is enough for the square and cube roots of numbers below 512.
local K, START = {}, {}
local function fraction(x) return bit.tobit(math.floor((x - math.floor(x)) * 4294967296)) end
for candidate = 2, 311 do
  local is_prime = true
  for divisor = 2, math.floor(math.sqrt(candidate)) do
    if candidate % divisor == 0 then is_prime = false end
  end
  if is_prime then
    K[#K + 1] = fraction(candidate ^ (1 / 3))
    if #START < 8 then START[#START + 1] = fraction(math.sqrt(candidate)) end
  end
end

local W = {}
local function sha256_block(state, text, offset)
  for t = 1, 16 do
    local b1, b2, b3, b4 = text:byte(offset + t * 4 - 3, offset + t * 4)
    W[t] = bor(bit.lshift(b1, 24), bit.lshift(b2, 16), bit.lshift(b3, 8), b4)
  end
  for t = 17, 64 do
    local x, y = W[t - 15], W[t - 2]
    local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
    local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
    W[t] = bit.tobit(W[t - 16] + s0 + W[t - 7] + s1)
  end
  local a, b, c, d, e, f, g, h = unpack(state)
  for t = 1, 64 do
    local s1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
    local t1 = bit.tobit(h + s1 + bxor(band(e, f), band(bnot(e), g)) + K[t] + W[t])
    local s0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
    local t2 = bit.tobit(s0 + bxor(band(a, b), band(a, c), band(b, c)))
    h, g, f, e, d, c, b, a = g, f, e, bit.tobit(d + t1), c, b, a, bit.tobit(t1 + t2)
  end
  local sums = { a, b, c, d, e, f, g, h }
  for i = 1, 8 do state[i] = bit.tobit(state[i] + sums[i]) end
end

-- Of texts below 8 KiB, in hex.
local function sha256(text)
  local bits = #text * 8
  local padded = text .. "\128" .. ("\0"):rep((55 - #text) % 64) .. ("\0"):rep(6) .. string.char(rshift(bits, 8), band(bits, 255))
  local state = { unpack(START) }
  for offset = 0, #padded - 64, 64 do sha256_block(state, padded, offset) end
  for i = 1, 8 do state[i] = bit.tohex(state[i]) end
  return table.concat(state)
end

-- The file is read once a second and taken apart when it has changed; one that cannot be read lets nobody in.
local keys, contents, read_at = {}, nil, 0
local function refresh(now)
  if now == read_at then return end
  read_at = now
  local file = io.open(KEYS_FILE, "rb")
  local text = file and file:read("*a") or ""
  if file then file:close() end
  if text == contents then return end
  contents, keys = text, {}
  for line in text:gmatch("[^\n]+") do
    local id, hash, expires, rights = line:match("^(%w+)\t(%x+)\t%d+\t(%d+)\t([^\t]*)\t")
    if id then keys[id] = { hash = hash, expires = tonumber(expires), rights = rights } end
  end
end

-- Takes as long for texts that differ early as for those that differ late.
local function equal(a, b)
  local difference = bxor(#a, #b)
  for i = 1, #a do difference = bor(difference, bxor(a:byte(i), b:byte(i) or 0)) end
  return difference == 0
end

local NOBODY = { hash = ("0"):rep(64), expires = 1 }
local function key_of(presented, now)
  refresh(now)
  local id, secret = presented:match("^tg_(%l?%w+)_([%w_-]+)$")
  local key = keys[id or ""] or NOBODY
  local is_right = equal(sha256((secret or ""):sub(1, 64)), key.hash)
  if is_right and #secret == 43 and (key.expires == 0 or now < key.expires) then return id, key.rights end
end

local function refuse(handle, text)
  handle:respond({ [":status"] = "401", ["www-authenticate"] = 'Bearer realm="tensorgate"' }, text)
end

-- What asks for nobody: health, and the pages of the facade. The core asks again, by the RPC and not by the path.
local function is_open(headers)
  local path = (headers:get(":path") or ""):match("^[^?#]*")
  if path == "/v2/health/live" or path == "/v2/health/ready" or path == "/grpc.health.v1.Health/Check" then return true end
  if (headers:get("content-type") or ""):sub(1, 16):lower() == "application/grpc" then return false end
  return not (path:match("^/v[12]/?$") or path:match("^/v[12]/") or path:match("^/predict"))
end

local function door_of(headers)
  local kind = (headers:get("x-tensorgate-type") or ""):lower()
  if kind:sub(1, 20) == "application/grpc-web" then return "grpc-web" end
  return kind:sub(1, 16) == "application/grpc" and "grpc" or "rest"
end

local function presented_key(headers)
  local key, bearer = headers:get("x-api-key"), headers:get("authorization")
  local from_bearer = bearer and bearer:match("^[Bb]earer +(tg_.*)$")
  return key or from_bearer, (key and headers:getNumValues("x-api-key") > 1) or (key and from_bearer and key ~= from_bearer)
end

function envoy_on_request(handle)
  local headers = handle:headers()
  headers:replace("x-tensorgate-door", door_of(headers))
  headers:remove("x-tensorgate-type")
  local subject, rights = headers:get("x-tensorgate-subject"), headers:get("x-tensorgate-rights")
  headers:remove("x-tensorgate-subject")
  local key, is_ambiguous = presented_key(headers)
  local caller = subject and "jwt:" .. subject
  if is_ambiguous or (key and subject) then return refuse(handle, "credentials: wanted one, got several") end
  if key then
    caller, rights = key_of(key, os.time())
    if not caller then return refuse(handle, "the API key is unknown, expired or revoked") end
  end
  if not caller then
    headers:remove("x-tensorgate-rights")
    if not is_open(headers) then return refuse(handle, "wanted an API key (x-api-key, or authorization: Bearer) or a token, got neither") end
    return
  end
  headers:replace("x-tensorgate-caller", caller)
  headers:replace("x-tensorgate-rights", rights or "")
  if (" " .. (rights or "") .. " "):find(" management ", 1, true) then headers:replace("x-tensorgate-management", "allowed") end
  if HIDES_CREDENTIALS then
    headers:remove("x-api-key")
    headers:remove("authorization")
  end
end
