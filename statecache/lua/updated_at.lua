-- What `now` is, the server's TIME, as a text of microseconds in UTC: `updated_at`.
local of_day = now[1] % 86400
local day = (now[1] - of_day) / 86400 + 719468 -- since 0000-03-01, for then leap days end their years
local of_era = day % 146097 -- of 400 years
local years = of_era - (of_era - of_era % 1460) / 1460 + (of_era - of_era % 36524) / 36524
  - (of_era - of_era % 146096) / 146096
years = (years - years % 365) / 365
local of_year = of_era - years * 365 - (years - years % 4) / 4 + (years - years % 100) / 100
local months = (5 * of_year + 2 - (5 * of_year + 2) % 153) / 153
local day_of_month = of_year - (153 * months + 2 - (153 * months + 2) % 5) / 5 + 1
local year = (day - of_era) / 146097 * 400 + years + (months < 10 and 0 or 1)
local of_hour = of_day % 3600
local updated_at = format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, months < 10 and months + 3 or months - 9,
  day_of_month, (of_day - of_hour) / 3600, (of_hour - of_hour % 60) / 60, of_day % 60, now[2])
