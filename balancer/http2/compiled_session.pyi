from balancer.http2.pure_session import Session as Session
