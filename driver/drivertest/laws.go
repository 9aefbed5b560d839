package drivertest

// law is a law of package driver, or an optional interface.
type law struct {
	name  string
	parts []part
}

type part struct {
	name  string
	prove func(*run)
}

var laws = []law{
	{"Join", []part{
		{"what was asked for", joinAsRequested},
		{"one node for each call", joinTogether},
		{"lost replies", joinLosesReplies},
		{"abandoned", joinAbandoned},
	}},
	{"Order", []part{
		{"of joins", orderOfJoins},
		{"under concurrency", orderTogether},
		{"behind nodes of the session", orderBehind},
		{"slices", orderSlices},
	}},
	{"Watch", []part{
		{"for nothing else", watchForNothingElse},
		{"after the change", watchAfterTheChange},
		{"of a node that is gone", watchGone},
		{"many watchers", watchTogether},
		{"during an outage", watchDuringOutage},
		{"lost event", watchLostEvent},
	}},
	{"Events", []part{
		{"in order", eventsInOrder},
	}},
	{"Deleted", []part{
		{"nodes of others", deletedOthers},
		{"own nodes that left", deletedOwn},
		{"own nodes that were removed", deletedOwnRemoved},
		{"own nodes of a session that ends", deletedOwnSession},
	}},
	{"Leave", []part{
		{"gone for everybody", leaveGone},
		{"with an ended context", leaveEndedContext},
		{"lost replies", leaveLosesReplies},
		{"during an outage", leaveDuringOutage},
		{"a node that was removed", leaveRemoved},
	}},
	{"Lease", []part{
		{"while the service answers", leaseServed},
		{"Done before the nodes go", leaseEnds},
		{"short outages", leaseShortOutages},
	}},
	{"Session", []part{
		{"closed", sessionClosed},
		{"expired", sessionExpired},
		{"expired while calls wait", sessionExpiredInCalls},
	}},
	{"Answers", []part{
		{"timeouts", answersTimeouts},
		{"lost replies", answersLostReplies},
	}},
	{"Context", []part{
		{"ended before", contextEnded},
		{"bounds the wait", contextBounds},
	}},
	{"Created", []part{
		{"grows", createdGrows},
		{"under concurrency", createdTogether},
	}},
	{"Close", []part{
		{"leaves nothing", closeLeavesNothing},
		{"during calls", closeDuringCalls},
		{"during an outage", closeDuringOutage},
	}},
	{"Unsupported", []part{
		{"interfaces", unsupportedInterfaces},
		{"names", unsupportedNames},
		{"requests", unsupportedRequests},
	}},
	{"Kinds", []part{
		{"one after the other", kindsInTurn},
		{"at the same time", kindsTogether},
	}},
	{"Verify", []part{{"nodes", verifyNodes}}},
	{"PlainLocker", []part{
		{"one holder", plainOneHolder},
		{"whose node", plainWhose},
		{"lost replies", plainLosesReplies},
	}},
	{"Limiter", []part{
		{"limits", limits},
		{"watch", limitWatch},
		{"permits", limitPermits},
	}},
	{"Downgrader", []part{
		{"in place", downgradeInPlace},
		{"a node that is gone", downgradeGone},
		{"lost reply", downgradeLosesReply},
	}},
	{"Inspector", []part{
		{"contenders", inspectContenders},
		{"queues", inspectQueues},
	}},
	{"Follower", []part{
		{"head", followHead},
		{"semaphore", followSemaphore},
	}},
	{"Breaker", []part{{"nodes of others", breakNodes}}},
	{"Revoker", []part{{"asks", revokeAsks}}},
	{"Recorder", []part{
		{"finish", recordFinish},
		{"one step", recordOneStep},
		{"under concurrency", recordTogether},
		{"settle", recordSettle},
		{"records", recordList},
		{"old ones", recordOld},
		{"lost replies", recordLosesReplies},
	}},
	{"Refuser", []part{{"refused removal", refused}}},
}
