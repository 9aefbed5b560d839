package zktest

import (
	"fmt"
	"strings"
)

// The names in the reply to mntr that the server does not measure: monitors find
// them, with the value 0.
const (
	// counters are numbers.
	counters = `
non_mtls_remote_conn_count last_client_response_size auth_failed_count local_sessions
outstanding_tls_handshake non_mtls_local_conn_count max_client_response_size min_client_response_size
open_file_descriptor_count max_file_descriptor_count
proposal_count watch_bytes outstanding_changes_removed throttled_ops stale_requests_dropped
large_requests_rejected insecure_admin_count connection_rejected cnxn_closed_without_zk_server_running
sessionless_connections_expired looking_count dead_watchers_queued stale_requests connection_drop_count
learner_proposal_received_count digest_mismatches_count dead_watchers_cleared response_packet_cache_hits
bytes_received_count add_dead_watcher_stall_time request_throttle_wait_count
requests_not_forwarded_to_commit_processor response_packet_cache_misses ensemble_auth_success
prep_processor_request_queued learner_commit_received_count stale_replies connection_request_count
response_bytes ensemble_auth_fail diff_count response_packet_get_children_cache_misses
connection_revalidate_count quit_leading_due_to_disloyal_voter snap_count unrecoverable_error_count
unsuccessful_handshake commit_count stale_sessions_expired response_packet_get_children_cache_hits
sync_processor_request_queued outstanding_changes_queued request_commit_queued ensemble_auth_skip
skip_learner_request_to_next_processor_count tls_handshake_exceeded revalidate_count`

	// summaries have an average, bounds, a count and a sum.
	summaries = `
commit_commit_proc_req_queued commit_process_time concurrent_request_processing_in_commit_processor
connection_token_deficit dbinittime election_time follower_sync_time fsynctime inflight_diff_count
inflight_snap_count leader_unavailable_time learner_request_processor_queue_size
netty_queued_buffer_capacity node_changed_watch_count node_children_watch_count node_created_watch_count
node_deleted_watch_count observer_sync_time pending_session_queue_size prep_process_time
prep_processor_queue_size proposal_process_time read_commit_proc_issued read_commit_proc_req_queued
reads_after_write_in_session_queue reads_issued_from_session_queue requests_in_session_queue
session_queues_drained snapshottime socket_closing_time startup_snap_load_time startup_txns_load_time
startup_txns_loaded sync_process_time sync_processor_batch_size sync_processor_queue_size
time_waiting_empty_pool_in_commit_processor_read_ms unavailable_time
write_batch_time_in_commit_processor write_commit_proc_issued write_commit_proc_req_queued`

	// distributions are summaries that also have percentiles.
	distributions = `
close_session_prep_time commit_propagation_latency dead_watchers_cleaner_latency jvm_pause_time_ms
local_write_committed_time_ms om_commit_process_time_ms om_proposal_process_time_ms
prep_processor_queue_time_ms propagation_latency proposal_ack_creation_latency proposal_latency
quorum_ack_latency read_commitproc_time_ms read_final_proc_time_ms readlatency
request_throttle_queue_time_ms server_write_committed_time_ms sync_processor_queue_and_flush_time_ms
sync_processor_queue_flush_time_ms sync_processor_queue_time_ms updatelatency
write_commitproc_time_ms write_final_proc_time_ms`
)

// writeUnmeasured writes the lines of mntr for what the server does not measure.
func writeUnmeasured(b *strings.Builder) {
	for _, name := range strings.Fields(counters) {
		fmt.Fprintf(b, "zk_%s\t0\n", name)
	}
	b.WriteString("zk_connection_drop_probability\t0.0\n")
	for _, name := range strings.Fields(summaries + distributions) {
		fmt.Fprintf(b, "zk_avg_%s\t0.0\n", name)
		for _, what := range []string{"min", "max", "cnt", "sum"} {
			fmt.Fprintf(b, "zk_%s_%s\t0\n", what, name)
		}
	}
	for _, name := range strings.Fields(distributions) {
		for _, what := range []string{"p50", "p95", "p99", "p999"} {
			fmt.Fprintf(b, "zk_%s_%s\t0\n", what, name)
		}
	}
}
