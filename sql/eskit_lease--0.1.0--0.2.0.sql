-- From 0.1.0 to 0.2.0. Where the server still runs the library of 0.1.0, PostgreSQL finds no such function in it, and nothing is changed.
CREATE FUNCTION eskit_lease._require_library(version text) RETURNS void STRICT LANGUAGE c AS 'MODULE_PATHNAME', '_require_library_wrapper';
REVOKE ALL ON FUNCTION eskit_lease._require_library(text) FROM PUBLIC;
COMMENT ON FUNCTION eskit_lease._require_library(text) IS 'Internal: what an update begins with; refuses it where the library that runs is older than this version.';
SELECT eskit_lease._require_library('0.2.0');
