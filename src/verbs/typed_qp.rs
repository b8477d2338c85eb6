//! Queue pairs whose service is in their type: creation, conversion and posting.

use std::marker::PhantomData;

use super::{Cq, CreateError, ListPolicy, Pd, PostError, PostListError, Qp, QpOptions};
use crate::transport::service::Service;
use crate::transport::{QpType, SendWr};

/// Reason why a queue pair is not of the service in the requested type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the queue pair is of the service {actual:?}, not {requested:?}")]
#[non_exhaustive]
pub struct WrongService {
    /// Service in the requested type.
    pub requested: QpType,
    /// Service of the queue pair.
    pub actual: QpType,
}

impl Pd {
    /// Creates a queue pair like [`create_qp`](Self::create_qp), with the service `S` whatever
    /// [`QpOptions::qp_type`] is.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use urxe::verbs::*;
    /// # let context = Context::on_fabric(&Fabric::new())?;
    /// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// let qp = pd.create_typed_qp::<Ud>(&cq, &cq, &QpOptions::default())?;
    /// qp.activate(QKey(1))?;
    /// let path = pd.create_ah(&AddressVector::to(qp.endpoint().gid))?;
    /// qp.post_send(&SendWr::send_to(1, &[], path.to(qp.qpn(), QKey(1))))?;
    /// cq.wait(Duration::from_secs(5))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`create_qp`](Self::create_qp).
    pub fn create_typed_qp<S: Service>(
        &self,
        send_cq: &Cq,
        recv_cq: &Cq,
        options: &QpOptions,
    ) -> Result<Qp<S>, CreateError> {
        Ok(self.create_qp(send_cq, recv_cq, &options.clone().qp_type(S::TYPE))?.with_service())
    }
}

impl Qp {
    /// Returns a handle of the same queue pair with the service `S` in its type.
    ///
    /// ```
    /// # use urxe::verbs::*;
    /// let (a, b) = Fabric::new().pair()?;
    /// let qp = a.qp.typed::<Rc>()?;
    /// assert_eq!(a.qp.typed::<Ud>().unwrap_err().actual, QpType::Rc);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WrongService`] if the queue pair is of another service.
    pub fn typed<S: Service>(&self) -> Result<Qp<S>, WrongService> {
        let (requested, actual) = (S::TYPE, self.0.qp_type);
        if requested == actual { Ok(self.with_service()) } else { Err(WrongService { requested, actual }) }
    }
}

/// Queue pairs whose service is in their type.
impl<S: Service> Qp<S> {
    /// Returns a handle of the same queue pair without the service in its type.
    pub fn untyped(&self) -> Qp {
        self.with_service()
    }

    /// Posts a send work request, like [`post_send`](Qp::post_send) of a queue pair of any service.
    ///
    /// # Errors
    /// [`PostError`]; then the work request was not posted.
    pub fn post_send(&self, wr: &SendWr<'_, S>) -> Result<(), PostError> {
        self.0.post_send(&wr.untyped())
    }

    /// Posts send work requests in order, like [`post_send_list`](Qp::post_send_list) of a queue pair of any
    /// service.
    ///
    /// # Errors
    /// [`PostListError`] with the index of the first work request that was rejected; neither it nor those
    /// after it were posted.
    pub fn post_send_list(&self, wrs: &[SendWr<'_, S>], policy: ListPolicy) -> Result<(), PostListError> {
        self.0.post_iterator(&mut wrs.iter().map(|wr| wr.untyped()), policy)
    }
}

impl<S> Qp<S> {
    fn with_service<T>(&self) -> Qp<T> {
        Qp(self.0.clone(), PhantomData)
    }
}
