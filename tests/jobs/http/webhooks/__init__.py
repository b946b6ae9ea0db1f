"""Tests of jobs/http/webhooks, against a real receiver on loopback."""
