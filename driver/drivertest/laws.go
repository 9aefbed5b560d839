package drivertest

// This file lists the laws: their parts, and what a part demands.

// law is a law of package driver, or an optional interface.
type law struct {
	name  string
	parts []part
}

type part struct {
	name    string
	prove   func(*run)
	demands string // what the law demands of a driver here; printed when the test fails
}

var laws = []law{
	{"Join", []part{
		{"what was asked for", joinAsRequested,
			"Join creates a node of the kind that was asked for (an exclusive one for a Guard), with a copy of the data, and returns the queue as it was at some moment after that. The Node is the same for every session."},
		{"one node for each call", joinTogether,
			"Each call creates one node. Its name is unique in its queue, is never used again, and IsContender accepts it."},
		{"lost replies", joinLosesReplies,
			"If the answer is lost, Join returns the one node that it has created, or an error and then the driver removes the node without being asked."},
		{"abandoned", joinAbandoned,
			"If a context ends before the answer, Join returns the context's error, and the driver removes what was created after all."},
	}},
	{"Order", []part{
		{"of joins", orderOfJoins,
			"A node that joins later has a larger Seq than the nodes in the queue, and follows them in every listing, nodes of another session after its Ping included."},
		{"under concurrency", orderTogether,
			"A listing contains, in order, every node that had joined before the listing began and has not left before it returned."},
		{"slices", orderSlices,
			"Slices that are returned have no spare capacity, and are never changed."},
	}},
	{"Watch", []part{
		{"for nothing else", watchForNothingElse,
			"A watch fires when its node is changed or removed, and for nothing else. After Deleted, a listing lacks the node. Watch.Data is what was stored."},
		{"after the change", watchAfterTheChange,
			"A watch fires after the change: afterward the node is in no listing."},
		{"of a node that is gone", watchGone,
			"The watch on a node that does not exist has fired with Missing when Watch returns it, and has no Created."},
		{"many watchers", watchTogether,
			"Each watch fires once its node is gone, whichever session watches the node, and however watch and removal meet."},
		{"during an outage", watchDuringOutage,
			"What happens while the service does not answer is told when it does, or the watch is Interrupted."},
		{"lost event", watchLostEvent,
			"If the service does not report a change, a check of the driver finds it in bounded time, and the watch fires with Unnoticed."},
	}},
	{"Events", []part{
		{"in order", eventsInOrder,
			"If a watch has fired with Deleted, so have the watches of the session that were set before and whose nodes were removed earlier."},
		{"in order after an outage", eventsAfterOutage,
			"The same if the service reports many changes at once."},
		{"on another server", eventsOnAnotherServer,
			"What an event tells, and what happened before it, is seen by later calls, also if the connection breaks at that moment and the next server is behind."},
	}},
	{"Deleted", []part{
		{"nodes of others", deletedOthers,
			"The watch on another session's node fires when that leaves or its session ends."},
		{"own nodes that left", deletedOwn,
			"The watch on a node of the session itself fires with Deleted if the session has removed it and is alive."},
		{"own nodes that were removed", deletedOwnRemoved,
			"If another has removed a node, the watch of its own session fires with Missing, never with Deleted."},
		{"own nodes of a session that ends", deletedOwnSession,
			"When a session ends, the watches on its own nodes fire with Missing or Interrupted, never with Deleted."},
	}},
	{"Leave", []part{
		{"gone for everybody", leaveGone,
			"When Leave returns nil, no session lists or finds the node."},
		{"with an ended context", leaveEndedContext,
			"Leave removes the node even if its context has ended before. It may return the context's error."},
		{"lost replies", leaveLosesReplies,
			"If the answer is lost, Leave finds out what became of the node: nil if the session has removed it, not ErrRemoved."},
		{"during an outage", leaveDuringOutage,
			"When its context ends, Leave returns the context's error, and removes the node in the background when the service answers again."},
		{"a node that was removed", leaveRemoved,
			"Leave returns ErrRemoved if another client has removed the node."},
	}},
	{"Lease", []part{
		{"while the service answers", leaseServed,
			"While the service answers, Lease is at most the session timeout, and never much less than half of it."},
		{"Done before the nodes go", leaseEnds,
			"If the service is silent, Done is closed before the service removes the nodes, Lease is 0, and Err wraps ErrSessionLost but not ErrExpired."},
		{"after idleness", leaseAfterIdleness,
			"An Idler lives on while nobody uses the session. When the session is used again, all of this holds from the first nil of Alive on."},
		{"short outages", leaseShortOutages,
			"If the service was silent for a while, either the nodes are still there, or Done is closed."},
	}},
	{"Session", []part{
		{"closed", sessionClosed,
			"After Close, Done is closed, Err and every call return an error that wraps ErrSessionLost, Lease is 0, all watches have fired, none with Deleted, and the nodes are gone. Done is closed before others see that the nodes are gone."},
		{"expired", sessionExpired,
			"If the service ends a session early, Done is closed, Err and every call return an error that wraps ErrSessionLost, Err wraps ErrExpired, all watches have fired, none with Deleted, and a later session is another one."},
		{"expired while calls wait", sessionExpiredInCalls,
			"Calls that wait when a session ends return an error that wraps ErrSessionLost."},
	}},
	{"Answers", []part{
		{"timeouts", answersTimeouts,
			"A call that was not answered returns the error of its context (Finish may return ErrUndecided). The session lives, and nothing is said of the node."},
		{"lost replies", answersLostReplies,
			"If an answer is lost, the session lives, its node is there, and no call returns ErrRemoved, ErrKind or ErrRecorded for what it has done itself."},
	}},
	{"Context", []part{
		{"ended before", contextEnded,
			"A call whose context has ended before sends nothing, and returns the context's error."},
		{"bounds the wait", contextBounds,
			"A call returns within a few milliseconds after the end of its context, although the service does not answer. Err, Done, Lease and Info wait for nothing."},
	}},
	{"Created", []part{
		{"grows", createdGrows,
			"Watch.Created is positive, less than 1<<53, the same for all sessions, and larger for a node that was created later, in any queue and by whatever session."},
		{"under concurrency", createdTogether,
			"A node that was created after another one has a larger Watch.Created."},
	}},
	{"Close", []part{
		{"leaves nothing", closeLeavesNothing,
			"After Close, no node of the session and no goroutine is left. It may be called again."},
		{"with an ended context", closeEndedContext,
			"Close leaves no goroutine, even if its context has ended before."},
		{"during calls", closeDuringCalls,
			"The same while other calls are made. They end."},
		{"during an outage", closeDuringOutage,
			"The context bounds Close. The service removes the nodes of a session that it could not be told about when the session expires."},
		{"after an outage", closeAfterOutage,
			"Close closes a session at the service even if the session is over for another reason, as when its lease has ended, or an earlier Close could not, though the service may keep the session for long."},
	}},
	{"Unsupported", []part{
		{"interfaces", unsupportedInterfaces,
			"The session's Info has the name of the driver. A session lacks an optional interface by not having its methods."},
		{"names", unsupportedNames,
			"CheckName accepts the names that lockpool.Escape returns, and refuses what driver.CheckName refuses. IsContender accepts no name that has another meaning."},
		{"requests", unsupportedRequests,
			"CheckPermits or Join refuses what the service cannot do, Join with an error that wraps errors.ErrUnsupported, and nothing is created."},
	}},
	{"Kinds", []part{
		{"one after the other", kindsInTurn,
			"Where a queue, a plain lock or a semaphore of a name is in use, the other two are refused with ErrKind. A limit alone, which no contender uses, refuses no queue."},
		{"at the same time", kindsTogether,
			"If several kinds of locks of one name begin at the same time, at most one of them succeeds, and the others are refused with ErrKind."},
	}},
	{"Verify", []part{
		{"nodes", verifyNodes,
			"Verify returns nil if all nodes, of any sessions and queues, exist at one moment, and ErrRemoved if one does not."},
	}},
	{"LeaveIf", []part{
		{"others exist", leaveIfOthersExist,
			"LeaveIf removes the node if all others exist as Inspect has returned them. Otherwise it returns ErrRemoved and removes nothing."},
		{"under concurrency", leaveIfTogether,
			"Of several whose nodes must exist for the others to leave, one leaves."},
		{"lost replies", leaveIfLosesReplies,
			"If the answer is lost, LeaveIf returns nil if the session has removed the node."},
	}},
	{"Rewrite", []part{
		{"data", rewriteData,
			"Rewrite changes what Data, Inspect and later watches return, and the version of the contender. Watches fire with Changed, those of the session before Rewrite returns. The place and a revocation stay."},
	}},
	{"PlainLocker", []part{
		{"one holder", plainOneHolder,
			"Of calls of TryCreate at the same time, one creates the node, and all get that Node: of kind Plain, with Seq 0."},
		{"whose node", plainWhose,
			"The node of the next holder is not taken for that of the one before: Verify and Leave of the old one return ErrRemoved."},
		{"lost replies", plainLosesReplies,
			"If the answer is lost, TryCreate still tells whether it has created the node, and Leave whether it has removed it."},
	}},
	{"Limiter", []part{
		{"limits", limits,
			"Limit returns the smaller of the limit that is set and the one given (0 for none), with a watch if one is set, and ErrLimit if there is neither. The limit that is set may be 0."},
		{"watch", limitWatch,
			"The watches of a limit, from Limit and from Watch, fire with Changed when it is set to another number. If none is set, that of Watch has fired with Missing."},
		{"permits", limitPermits,
			"The node of a lease states its permits and its limit, for every session."},
	}},
	{"Downgrader", []part{
		{"in place", downgradeInPlace,
			"Downgrade puts a Shared node with another name and the same Seq in the place of the old one. Watches on the old one fire with Changed, later ones with Missing, and Rewrite, Break and Revoke of the old one return ErrRemoved. A revocation stays, beside the new data."},
		{"a node that is gone", downgradeGone,
			"Downgrade of a node that is gone returns ErrRemoved."},
		{"lost reply", downgradeLosesReply,
			"If the answer is lost, Downgrade finds out whether the node was replaced."},
	}},
	{"Inspector", []part{
		{"contenders", inspectContenders,
			"Inspect returns the contenders with their data, sessions and Created, in order, or only the Node of contenders that are not wanted; the holder of a plain lock; and which parts of a semaphore there are."},
		{"queues", inspectQueues,
			"Queues returns the names of all locks with a contender, of any kind, at and below the prefix, sorted, without names below Waits and Records."},
	}},
	{"Follower", []part{
		{"head", followHead,
			"Follow returns as many contenders as head wants. One of the watches fires when one of them leaves and, unless head says that this changes nothing or the queue is empty, when somebody joins."},
		{"joins", followJoins,
			"If later contenders matter, the last watch fires with Changed when a contender joins or leaves, and not for a change made before."},
		{"semaphore", followSemaphore,
			"Follow of a semaphore's name tells which parts of it there are. One of the watches fires when that changes."},
	}},
	{"Counter", []part{
		{"neighbors", countNeighbors,
			"Adjoins tells whether a contender has joined directly after another one, whichever sessions they belong to."},
	}},
	{"Sizer", []part{
		{"contenders", sizeOfQueue,
			"Size is not smaller than the number of contenders, of all sessions, and 0 if there are none."},
	}},
	{"Breaker", []part{
		{"nodes of others", breakNodes,
			"Break removes another session's node, and returns ErrRemoved if it was gone. Watches of its own session fire with Missing, watches of others with Deleted."},
	}},
	{"Revoker", []part{
		{"asks", revokeAsks,
			"Revoke changes the node: watches fire with Changed, and later ones have Revoked set. The node stays, and what one of ours says. The error is ErrRemoved if the node was gone."},
	}},
	{"Recorder", []part{
		{"finish", recordFinish,
			"Finish creates the record, and the node stays. It fails with ErrRemoved if the node was gone, and otherwise with ErrRecorded if there was a record."},
		{"one step", recordOneStep,
			"Whoever sees that the node is gone finds the record, or there will never be one: after Break, Finish fails."},
		{"under concurrency", recordTogether,
			"Of several that finish a run at the same time, one succeeds, and the others fail with ErrRecorded."},
		{"settle", recordSettle,
			"Settle makes sure that the node is gone, so that Finish cannot succeed anymore, and tells whether the record with the data exists."},
		{"records", recordList,
			"Records returns the records of a name, the oldest first. Forget removes the records with the keys, or all. They do not end with a session."},
		{"old ones", recordOld,
			"A record is there for its Keep. Then the service removes it, or ClearRecords, which is called after each run, for any names of both."},
		{"lost replies", recordLosesReplies,
			"If the answer is lost, Finish returns nil if the record exists, ErrUndecided if it does not know, and another error if the record does not exist."},
	}},
	{"Refuser", []part{
		{"refused removal", refused,
			"If the service refuses to remove a node, Leave returns ErrNoPermission and not ErrRemoved, Unremovable is closed, and the node goes with its session."},
	}},
}
