from balancer.http.h2.pure_session import Session as Session
