-- Leaves of what Envoy's JSON reader says its first line, without the value it found: the rest is the caller's own body.
function envoy_on_response(response)
  if response:headers():get(":status") ~= "400" then
    return
  end
  local body = response:body()
  local text = body and body:getBytes(0, body:length()) or ""
  local first, last = text:find('"message":"the request cannot be read: ', 1, true)
  if first == nil then
    return
  end
  -- To the first line break, or to the quote that is not escaped. A control character is \n or \u000a.
  local place = last + 1
  while place <= #text and text:sub(place, place) ~= '"' and text:sub(place, place + 1) ~= "\\n" and text:sub(place, place + 5) ~= "\\u000a" do
    place = place + (text:sub(place, place) == "\\" and 2 or 1)
  end
  local said = text:sub(first, place - 1):gsub('invalid value \\".*\\" for', "invalid value for")
  local size = body:setBytes('{"code":3,' .. said .. '","details":[]}')
  -- Asked for again: waiting for the body may have ended the life of the first one.
  response:headers():replace("content-length", tostring(size))
end
