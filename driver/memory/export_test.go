package memory

// SetNext sets the number of the next node in a queue that is not empty.
func (st *Store) SetNext(queue string, n int32) { st.queues[queue].next = n }
