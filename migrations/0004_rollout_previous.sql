-- How the rollout before it ends once this one is in the status of the group. Written with the intent: a crash between that status and
-- the end of the rollout before would otherwise lose whether that one had succeeded, failed or been superseded.
ALTER TABLE rollouts ADD COLUMN previous TEXT;
