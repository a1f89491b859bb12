-- Turns the body of a failed /v2 call, {"code":5,"message":"...","details":[]}, into {"error":"..."}.
function envoy_on_response(response)
  local headers = response:headers()
  if tonumber(headers:get(":status")) < 400 or headers:get("content-type") ~= "application/json" then
    return
  end
  local body = response:body()
  local text = body and body:getBytes(0, body:length()) or ""
  local opening = '"message":"'
  local first, last = text:find(opening, 1, true)
  if text:sub(1, 8) ~= '{"code":' or first == nil then
    return
  end
  -- The message ends at the first quote that is not escaped; an escape is always two characters here.
  local place = last + 1
  while place <= #text and text:sub(place, place) ~= '"' do
    place = place + (text:sub(place, place) == "\\" and 2 or 1)
  end
  local size = body:setBytes('{"error":"' .. text:sub(last + 1, place - 1) .. '"}')
  -- Asked for again: waiting for the body may have ended the life of the first one.
  response:headers():replace("content-length", tostring(size))
end
