-- From 0.2.0 to 0.3.0. Refused where the server still runs the library of 0.2.0.
SELECT eskit_lease._require_library('0.3.0');
